from servicekit.plan import Int32Array, Plan, Refusal, Result, RowOpen  # noqa
