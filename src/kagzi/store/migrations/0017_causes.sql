-- An event's causes are found by its key, and what an input caused by this. It begins with the input: with the same
-- columns in front as the key, PostgreSQL took it for causes of events too while it knew nothing of the table, and read
-- all that an input of a hundred thousand rows had caused for each of them.
create index caused_by on kagzi.event_causes (input_id, namespace, automation);
drop index kagzi.cause_of;
