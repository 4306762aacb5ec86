"""`vllm.grpc.engine.VllmEngine` beside our own services, for the router smg: the extra [smg]."""
