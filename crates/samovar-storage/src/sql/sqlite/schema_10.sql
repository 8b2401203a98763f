-- Schema 10. NARs whose files share an object of a bucket.
create table packed (
    nar_id integer primary key references nar (id) on delete cascade,
    pack   text not null,   -- key of the object
    start  integer not null -- offset of the file in the object
) strict;
create index packed_pack on packed (pack);
