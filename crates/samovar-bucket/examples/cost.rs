//! Measures the processor time of requests: `cost s3://BUCKET?endpoint=… [COUNT]`.
//!
//! Writes COUNT objects of 64 KiB, reads an object of 8 MiB COUNT / 8 times, and deletes all. The
//! credentials are those of the environment.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program that measures, run by hand"
)]

use std::io::Read as _;
use std::time::{Duration, Instant};

use samovar_bucket::{Bucket, PutOptions, Settings};
use testkit::procfs;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let settings = Settings::parse(&arguments.next().unwrap()).unwrap();
    let count: u32 = arguments
        .next()
        .map_or(1000, |count| count.parse().unwrap());
    let bucket = Bucket::open(&settings).unwrap();
    let put = PutOptions::default();
    let small: Vec<u8> = (0..=255).cycle().take(64 << 10).collect();
    let large: Vec<u8> = (0..=255).cycle().take(8 << 20).collect();
    bucket.put("cost/large", &large, &put).unwrap();

    measure("PUT of 64 KiB", count, |index| {
        bucket.put(&format!("cost/{index}"), &small, &put).unwrap();
    });
    let mut buffer = vec![0; 128 << 10];
    measure("GET of 8 MiB", count / 8, |_| {
        let mut download = bucket.get("cost/large", None).unwrap().unwrap();
        while download.read(&mut buffer).unwrap() > 0 {}
    });
    measure("HEAD", count, |index| {
        bucket.head(&format!("cost/{index}")).unwrap().unwrap();
    });
    let keys: Vec<String> = (0..count).map(|index| format!("cost/{index}")).collect();
    let mut keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    keys.push("cost/large");
    bucket.delete(&keys).unwrap();
}

fn measure(name: &str, count: u32, mut request: impl FnMut(u32)) {
    let (begun, cpu) = (Instant::now(), cpu_time());
    for index in 0..count {
        request(index);
    }
    let (wall, cpu) = (begun.elapsed() / count, (cpu_time() - cpu) / count);
    println!("{name}: {cpu:?} of processor time, {wall:?} in all");
}

fn cpu_time() -> Duration {
    procfs::cpu_time(std::process::id()).unwrap()
}
