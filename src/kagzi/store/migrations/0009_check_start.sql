-- Bounds start_at as servers do: a run that never starts is refused.
--
-- Refuses what has no meaning as an option of a start.
create or replace function kagzi.check_start(delay interval, start_at timestamptz, priority integer, timeout interval,
                                  labels jsonb, retry_policy jsonb, on_conflict text, dedupe text) returns void
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp
    as $$
declare
    problem text;
    advice text := 'Correct the argument.';
begin
    if delay is not null and start_at is not null then
        problem := 'delay and start_at are both given';
        advice := 'A run starts after a delay or at a time.';
    elsif delay not between interval '0' and interval '3660 days' then
        problem := format('delay is %s', delay);
        advice := 'It must be from 0 to ten years.';
    elsif start_at >= '2200-01-01 00:00:00+00' then
        problem := format('start_at is %s', start_at);
        advice := 'It must be before the year 2200.';
    elsif priority is null or priority not between 0 and 4 then
        problem := format('priority is %s', coalesce(priority::text, 'null'));
        advice := 'It must be from 0 to 4, higher first.';
    elsif timeout not between interval '1 millisecond' and interval '3660 days' then
        problem := format('timeout is %s', timeout);
        advice := 'It must be from 1 ms to ten years.';
    elsif on_conflict is null or on_conflict not in ('return', 'reject') then
        problem := format('on_conflict is %L', on_conflict);
        advice := 'Inside a transaction it is ''return'' or ''reject''; only a server can replace a run.';
    elsif dedupe is null or dedupe not in ('active', 'forever') then
        problem := format('dedupe is %L', dedupe);
        advice := 'It must be ''active'' or ''forever''.';
    elsif retry_policy is not null and (jsonb_typeof(retry_policy) <> 'object' or exists (
            select 1 from jsonb_each(retry_policy) as entry
            where entry.key not in ('maximum_attempts', 'initial_interval_ms', 'backoff_coefficient',
                                    'maximum_interval_ms')
               or jsonb_typeof(entry.value) <> 'number' or (entry.value #>> '{}')::numeric < 0)) then
        problem := 'retry_policy is no retry policy';
        advice := 'It holds maximum_attempts, initial_interval_ms, backoff_coefficient and maximum_interval_ms.';
    elsif jsonb_typeof(labels) <> 'object' or (select count(*) > 32 or not coalesce(bool_and(
              entry.key <> '' and octet_length(entry.key) <= 255 and jsonb_typeof(entry.value) = 'string'
              and octet_length(entry.value #>> '{}') <= 255), true)
          from jsonb_each(case when jsonb_typeof(labels) = 'object' then labels end) as entry) then
        problem := 'labels is no object of at most 32 texts';
        advice := 'Keys and values are texts of at most 255 bytes, as {"customer": "7"}.';
    else
        return;
    end if;
    raise exception 'kagzi: %', problem using errcode = 'invalid_parameter_value', hint = advice;
end
$$;
