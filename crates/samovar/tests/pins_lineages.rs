//! Generations of a pin that was created again, or whose newest generation was removed, are not
//! taken for those before, whatever their numbers are.

mod support;
mod support_pins;
mod support_uploads;

use support_pins::Pins;
use support_uploads::assert_refused;
use testkit::process::output;

#[test]
fn generations_of_another_lineage_do_not_meet_a_condition() {
    let pins = Pins::new(&["one", "two"]);
    let paths = &pins.paths;
    let lineages = || {
        let response = pins.get("main");
        response
            .header("samovar-lineages")
            .expect("lineages")
            .to_owned()
    };
    pins.put("main", "", &paths[0]);
    let first = lineages();
    pins.put("main", "", &paths[1]);
    assert_eq!(lineages(), first);
    // After its newest generation was removed, and after the pin was.
    pins.request("DELETE", "main?generation=2", "", "");
    assert_eq!(pins.put("main", "If-Match: \"1\"\r\n", &paths[1]), 3);
    let tag = pins.get("main").header("etag").expect("a tag").to_owned();
    assert_eq!(lineages(), format!("{tag}, {first}"));
    pins.request("DELETE", "main", "", "");
    assert_eq!(pins.put("main", "", &paths[0]), 4);
    assert_eq!(
        pins.get("main").header("samovar-lineages"),
        pins.get("main").header("etag")
    );
    let other = format!("If-Match: \"4-{}\r\n", &first["\"1-".len()..]);
    let refused = pins.request("PUT", "main", &other, &paths[1]);
    assert_refused(&refused, 412, &["\"main\" is 4"]);
    let refused = pins.request("DELETE", "main", &other, "");
    assert_refused(&refused, 412, &["\"main\" is 4"]);
    let same = lineages();
    assert_eq!(
        pins.put("main", &format!("If-Match: {same}\r\n"), &paths[1]),
        5
    );
}

/// Removed pins are remembered by name up to a limit. The numbers of the others are not assigned
/// again either.
#[test]
fn the_numbers_of_very_many_removed_pins_are_not_assigned_again() {
    let pins = Pins::new(&["one", "two"]);
    let paths = &pins.paths;
    let count = || {
        let query = "select count(*) from removed_pin where name <> ''";
        pins.site.sql(query).trim().to_owned()
    };
    let many = |statement: &str| {
        pins.site.sql(&format!(
            "with recursive number (n) as \
                 (select 1 union all select n + 1 from number where n < 10000) {statement}"
        ));
    };
    pins.put("old", "", &paths[0]);
    assert_eq!(pins.put("old", "", &paths[1]), 2);
    pins.request("DELETE", "old", "", "");
    assert_eq!(count(), "1");
    // As if other pins had been removed later.
    many("insert into removed_pin select 1, 'later-' || n, 1, unixepoch() + 10 from number");
    pins.put("last", "", &paths[0]);
    pins.request("DELETE", "last", "", "");
    assert_eq!(count(), "10000");
    assert_eq!(pins.put("old", "", &paths[0]), 3);
    assert_eq!(pins.put("old", "", &paths[1]), 4);
    assert_eq!(pins.put("new", "", &paths[1]), 3);
    assert_eq!(pins.put("later-1", "", &paths[1]), 2);
    // Pins that expire are limited, too.
    many(
        "insert into pin (cache_id, name, generation, path_id, created_at, expires_at, lineage) \
         select 1, 'brief-' || n, 7, (select min(id) from path), 0, 1, randomblob(16) from number",
    );
    let mut gc = support::samovar();
    output(gc.arg("gc").arg("--config").arg(pins.site.config()));
    assert_eq!(count(), "10000");
    assert_eq!(pins.put("newer", "", &paths[1]), 8);
}
