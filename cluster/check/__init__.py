"""`podium check`: whether the pool, the Serve config and the machines agree, and what they cost.

Three files say what is served, by how many replicas, and on which machines; at run time nothing reports
a contradiction between them: a replica just stays pending. Reads files only: asks no cloud, starts no Ray.

    cli.py          the command                    tables.py   every check, and what is shown
    case.py         the three files, read into one `Case`
    machines.py     kinds of nodes, from `ray up`'s YAML or a RayService manifest
    deployments.py  what a replica needs, from the settings and the Serve config
    code.py         what is imported, user_config   scaling.py  replicas and what asks for them
    hardware.py     ports, images, GPUs of machines
    placing.py      names, GPUs, nodes             memory.py   weights and KV cache against GPU memory
    running.py      keys, prices, draining, spot   cost.py     dollars an hour, and for a thousand requests
"""
