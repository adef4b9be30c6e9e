-- An event's causes are found by its key, and what an input caused by this index. Both begin alike: while PostgreSQL knew
-- nothing of the table it took this one for causes of events too, and read all that an input of a hundred thousand rows
-- had caused for each of them. No input is null; that it says so keeps it for those who name an input.
create index caused_by on kagzi.event_causes (namespace, automation, input_id) where input_id is not null;
drop index kagzi.cause_of;
