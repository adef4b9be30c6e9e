-- Statements are planned once, mostly while the tables are as good as empty. Of two indexes that look equally good then
-- PostgreSQL takes the younger one, and for an event by its key that was the index for lists, in which every event of the
-- automation lies between. So the keys are made anew, and are the youngest.
alter table kagzi.events drop constraint events_pkey,
    add constraint events_pkey primary key (namespace, automation, topic, event_id);
alter table kagzi.event_causes drop constraint event_causes_pkey,
    add constraint event_causes_pkey primary key (namespace, automation, topic, event_id, input_id);
