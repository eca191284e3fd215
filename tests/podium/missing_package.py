import absent_package  # noqa: F401
