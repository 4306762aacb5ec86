"""The OpenAI surface: decodes HTTP, asks for answers, encodes them. Knows no gRPC."""
