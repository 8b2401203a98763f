-- Schema 8: the lineage of a generation, 128 random bits. Generations of a pin with the same lineage were
-- added one after the other. Those of one pin get one lineage here.
alter table pin add column lineage blob not null default x'00000000000000000000000000000000';
create table new_lineage (
    cache_id integer not null,
    name     text not null,
    lineage  blob not null,
    primary key (cache_id, name)
) strict, without rowid;
insert into new_lineage select cache_id, name, randomblob(16) from pin group by cache_id, name;
update pin set lineage =
    (select its.lineage from new_lineage as its
     where its.cache_id = pin.cache_id and its.name = pin.name);
drop table new_lineage;
