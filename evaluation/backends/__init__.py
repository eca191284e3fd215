"""Who answers questions: a pool in this process (`in_process`), or a server (`over_http`)."""
