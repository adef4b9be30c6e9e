"""What users import: declaring workflows and steps, running them on a worker, starting and watching them from a
client.
"""
