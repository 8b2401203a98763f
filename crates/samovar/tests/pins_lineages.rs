//! Generations of a pin that was created again, or whose newest generation was removed, are not
//! taken for those before, whatever their numbers are.

mod support;
mod support_pins;
mod support_uploads;

use support_pins::Pins;
use support_uploads::assert_refused;

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
