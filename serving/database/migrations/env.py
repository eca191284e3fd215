"""Script that Alembic runs to migrate: on the connection, in the transaction and under the lock of
`serving/database/migrate.py`.
"""

from alembic import context

from serving.database.migrate import VERSION_TABLE
from serving.database.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
