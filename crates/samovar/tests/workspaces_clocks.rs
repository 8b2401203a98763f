//! Clocks decide nothing: with wrong clocks of servers and clients, and with any times of files,
//! generations have their order, every change is found, and merges are right.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_clock;
mod support_uploads;
mod support_workspaces;

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use support::samovar;
use support_clock::{FakeClock, jump};
use support_uploads::{Running, Site};
use support_workspaces::{Home, assert_has, exits, read, tree, write};
use testkit::process::output;

const DAY: Duration = Duration::from_secs(86_400);

/// Sets the time of the last modification of a file.
fn touch(directory: &Path, name: &str, time: SystemTime) {
    let file = File::options().write(true).open(directory.join(name));
    file.unwrap().set_modified(time).unwrap();
}

#[test]
fn generations_are_in_order_whatever_the_clocks_say() {
    let Some(clock) = FakeClock::find() else {
        return;
    };
    let site = Site::new();
    site.configure_empty("access.networks = [\"192.0.2.0/24\"]\n");
    let mut serve = samovar();
    // The clock of the server goes back while it runs.
    let server_clock = site.dir().join("clock");
    jump(&server_clock, "-1d");
    clock.follow(serve.args(site.arguments()), &server_clock);
    let server = Running::of(&mut serve);
    let token = site.token(&["--rights", "read,push,pin"]);
    let home = Home {
        site,
        server,
        token,
    };
    // The clock of each workspace.
    let [ahead, behind] = ["+1d", "-1d"];
    let run = |directory: &Path, difference: &str, arguments: &[&str], code: i32| {
        let mut command = home.command_in(directory, arguments);
        clock.set(&mut command, difference);
        exits(&mut command, code)
    };
    let open = |directory: &str, difference: &str| {
        let directory = home.dir(directory);
        let mut command = home.command(&["open", "app"]);
        clock.set(command.arg(&directory), difference);
        output(&mut command);
        directory
    };
    let one = open("one", ahead);
    write(&one, "both", "1");
    write(&one, "one", "1");
    run(&one, ahead, &["push"], 0);
    let two = open("two", behind);
    for round in 2..5_u64 {
        jump(&server_clock, &format!("-{}d", round * 100));
        // The newest generation is that of a clock two days before the one of its base.
        write(&two, "two", round.to_string());
        write(&two, "both", format!("two {round}"));
        assert_has(&run(&two, behind, &["diff"], 1), "modified both");
        run(&two, behind, &["push"], 0);
        write(&one, "one", round.to_string());
        write(&one, "both", format!("one {round}"));
        let text = run(&one, ahead, &["push"], 1);
        assert_has(&text, "was pushed by");
        // Neither version is newer.
        let text = run(&one, ahead, &["pull"], 1);
        assert_has(&text, "conflict: both stays as it is");
        assert_eq!(read(&one, "both"), format!("one {round}"));
        assert_eq!(read(&one, "two"), round.to_string());
        run(&one, ahead, &["push"], 0);
        run(&two, behind, &["pull"], 0);
        assert_eq!(tree(&two), tree(&one));
        for (directory, difference) in [(&one, ahead), (&two, behind)] {
            assert_has(&run(directory, difference, &["status"], 0), "no changes");
        }
    }
    let log = home.run(&one, &["log"]);
    let rows = log.lines().skip(1).map(|line| {
        let mut words = line.split_whitespace().filter(|word| *word != "*");
        let mut next = || words.next().unwrap().to_owned();
        (next(), next())
    });
    let (numbers, dates): (Vec<String>, Vec<String>) = rows.unzip();
    assert_eq!(numbers, ["7", "6", "5", "4", "3", "2", "1"], "{log}");
    // The generations of later rounds have earlier dates.
    let dates_of_rounds: Vec<_> = dates.iter().step_by(2).collect();
    assert!(dates_of_rounds.is_sorted() && dates[0] < dates[6], "{log}");
}

#[test]
fn changes_are_found_with_any_time_of_modification() {
    let home = Home::new();
    let one = home.open("app", "one");
    let now = SystemTime::now();
    let times = [
        ("future", now + 400 * DAY),
        ("past", now - 400 * DAY),
        ("zero", UNIX_EPOCH),
        ("before", UNIX_EPOCH - DAY),
    ];
    for (name, time) in times {
        write(&one, name, "old");
        touch(&one, name, time);
    }
    home.push(&one);
    home.assert_clean(&one);
    let two = home.open("app", "two");
    home.assert_clean(&two);
    // The same size and the same time.
    for (name, time) in times {
        write(&one, name, "new");
        touch(&one, name, time);
        assert_has(&home.exits(&one, &["diff"], 1), &format!("modified {name}"));
        assert_has(&home.exits(&one, &["diff"], 1), &format!("modified {name}"));
        home.push(&one);
        home.assert_clean(&one);
    }
    home.run(&two, &["pull"]);
    for (name, time) in times {
        assert_eq!(read(&two, name), "new");
        assert_eq!(
            fs::metadata(two.join(name)).unwrap().modified().unwrap(),
            time
        );
    }
    home.assert_clean(&two);
}

/// Both sides change a file to the same size and time, as tools do that set all times to one.
#[test]
fn files_with_equal_times_and_sizes_are_merged_by_their_contents() {
    let home = Home::new();
    let one = home.open("app", "one");
    let time = UNIX_EPOCH + 10_000 * DAY;
    let put = |directory: &Path, name: &str, content: &str| {
        write(directory, name, content);
        touch(directory, name, time);
    };
    put(&one, "both", "base");
    put(&one, "theirs", "base");
    put(&one, "ours", "base");
    home.push(&one);
    let two = home.open("app", "two");
    put(&one, "both", "one!");
    put(&one, "theirs", "new!");
    home.push(&one);
    put(&two, "both", "two!");
    put(&two, "ours", "mine");
    home.exits(&two, &["pull"], 1);
    let found = ["both", "theirs", "ours"].map(|name| read(&two, name));
    assert_eq!(found, ["two!", "new!", "mine"]);
    let text = home.exits(&two, &["diff"], 1);
    assert_has(&text, "modified both");
    assert_has(&text, "modified ours");
    // An older state has the same sizes and times.
    home.run(&two, &["restore", "@1", "theirs"]);
    let text = home.exits(&two, &["diff"], 1);
    for name in ["both", "ours", "theirs"] {
        assert_has(&text, &format!("modified {name}"));
    }
    assert_eq!(home.push(&two), 3);
    let three = home.open("app", "three");
    assert_eq!(tree(&three), tree(&two));
}
