"""PostgreSQL: every SQL statement of the project, each in a `.sql` file beside the one module that runs it."""
