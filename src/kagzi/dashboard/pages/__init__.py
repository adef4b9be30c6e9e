"""What people look at: one module a noun, each a view from the API's answers to a page."""
