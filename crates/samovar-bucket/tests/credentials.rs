//! Credentials are found where Amazon's tools look for them, and are renewed before they expire.
//!
//! The metadata service of a machine, that of a container and the security token service exist only
//! at Amazon. Here a server of the test speaks their documented exchanges. The environment is that
//! of a process, so each case runs in a process of its own: this program, called again.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support_canned;

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use samovar_bucket::{Bucket, CredentialSource, PutOptions, Settings};
use support_canned::{Asked, Canned, Reply};

/// Endpoint of the engine in the process of a case.
const ENGINE: &str = "CASE_ENGINE";
/// Number of requests that the process sends, with a pause between them.
const COUNT: &str = "CASE_COUNT";
/// A file of credentials that the settings name.
const FILE: &str = "CASE_FILE";

/// Not a test by itself: the process of a case.
#[test]
fn case() {
    let Ok(engine) = std::env::var(ENGINE) else {
        return;
    };
    let url = format!("s3://cache?region=here&endpoint={engine}");
    let mut settings = Settings::parse(&url).unwrap();
    if let Ok(file) = std::env::var(FILE) {
        settings.credentials = CredentialSource::File(file.into());
    }
    let bucket = Bucket::open(&settings).unwrap();
    for number in 0..std::env::var(COUNT).unwrap().parse::<u32>().unwrap() {
        if let Err(error) = bucket.put(&format!("k{number}"), b"x", &PutOptions::default()) {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            println!("FAILED {error}: {}", cause.unwrap_or_default());
        }
    }
}

/// What came out of a case.
struct Came {
    /// Key ids and tokens in the signatures, by request.
    logins: Vec<String>,
    output: String,
}

/// Runs a case with these variables and no other ones of Amazon, against an engine that accepts
/// all.
fn run(variables: &[(&str, &str)], count: u32) -> Came {
    run_against(variables, count, |_| Reply::new(200, ""))
}

fn run_against(
    variables: &[(&str, &str)],
    count: u32,
    answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static,
) -> Came {
    let engine = Canned::start(answer);
    let program = std::env::current_exe().unwrap();
    let program = program.to_str().unwrap();
    let mut command = testkit::process::without_variables(program, &["AWS_", "CASE_", "HOME"]);
    command.args(["--exact", "case", "--nocapture"]);
    command.env(ENGINE, engine.url());
    command.env(COUNT, count.to_string());
    command.env("AWS_EC2_METADATA_DISABLED", "true");
    command.envs(variables.iter().copied());
    let output = finish(&mut command);
    Came {
        logins: engine.asked().iter().map(login).collect(),
        output,
    }
}

fn finish(command: &mut Command) -> String {
    let output = testkit::process::finish(command);
    String::from_utf8(output.stdout).unwrap()
}

/// Returns `KEY` or `KEY/TOKEN` of a signature.
fn login(asked: &Asked) -> String {
    let parameter = |name: &str| {
        let (_, rest) = asked.target.split_once(&format!("{name}="))?;
        Some(rest.split('&').next().unwrap().to_owned())
    };
    let key = parameter("X-Amz-Credential").unwrap();
    let key = key.split("%2F").next().unwrap().to_owned();
    match parameter("X-Amz-Security-Token") {
        Some(token) => format!("{key}/{token}"),
        None => key,
    }
}

/// A time this many seconds from now, as the services write it.
fn in_seconds(seconds: u64) -> String {
    let time = SystemTime::now() + Duration::from_secs(seconds);
    let time = jiff::Timestamp::try_from(time).unwrap();
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn json(key: &str, expires: &str) -> Reply {
    let text = format!(
        "{{\"Code\":\"Success\",\"AccessKeyId\":\"{key}\",\"SecretAccessKey\":\"s\",\
         \"Token\":\"t\",\"Expiration\":\"{expires}\"}}"
    );
    Reply::new(200, text)
}

#[test]
fn the_environment_is_first() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "FILEKEY\nsecret\n").unwrap();
    let came = run(
        &[
            ("AWS_ACCESS_KEY_ID", "ENVKEY"),
            ("AWS_SECRET_ACCESS_KEY", "s"),
            ("AWS_SHARED_CREDENTIALS_FILE", file.path().to_str().unwrap()),
        ],
        2,
    );
    assert_eq!(came.logins, ["ENVKEY", "ENVKEY"]);
    let with_token = [
        ("AWS_ACCESS_KEY_ID", "ENVKEY"),
        ("AWS_SECRET_ACCESS_KEY", "s"),
        ("AWS_SESSION_TOKEN", "tok"),
    ];
    assert_eq!(run(&with_token, 1).logins, ["ENVKEY/tok"]);
}

#[test]
fn files_are_read() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join(".aws")).unwrap();
    let shared = home.path().join(".aws/credentials");
    let text = "[default]\naws_access_key_id=A\naws_secret_access_key=s\n\
                [ci]\naws_access_key_id=B\naws_secret_access_key=s\n";
    std::fs::write(&shared, text).unwrap();
    let home_variable = ("HOME", home.path().to_str().unwrap());
    assert_eq!(run(&[home_variable], 1).logins, ["A"]);
    assert_eq!(
        run(&[home_variable, ("AWS_PROFILE", "ci")], 1).logins,
        ["B"]
    );

    let own = home.path().join("own");
    std::fs::write(&own, "C\ns\n").unwrap();
    let own = own.to_str().unwrap();
    // A file that the settings name is used, whatever the environment says.
    let variables = [home_variable, (FILE, own), ("AWS_ACCESS_KEY_ID", "ENV")];
    assert_eq!(run(&variables, 1).logins, ["C"]);
    let named = ("AWS_SHARED_CREDENTIALS_FILE", own);
    assert_eq!(run(&[home_variable, named], 1).logins, ["C"]);
}

#[test]
fn no_credentials_are_an_error_that_names_the_remedy() {
    let came = run(&[], 1);
    assert!(came.logins.is_empty());
    assert!(
        came.output.contains("there are no usable credentials"),
        "{}",
        came.output
    );
    assert!(
        came.output.contains("set AWS_ACCESS_KEY_ID"),
        "{}",
        came.output
    );
    let came = run(&[(FILE, "/nonexistent/x")], 1);
    assert!(
        came.output.contains("/nonexistent/x cannot be read"),
        "{}",
        came.output
    );
}

#[test]
fn a_key_that_was_changed_in_its_file_is_read_again() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "OLD\ns\n").unwrap();
    let path = file.path().to_owned();
    let came = run_against(&[(FILE, path.to_str().unwrap())], 2, {
        let path = path.clone();
        move |asked| {
            if login(asked) == "NEW" {
                return Reply::new(200, "");
            }
            // The operator has changed the key meanwhile.
            std::fs::write(&path, "NEW\ns\n").unwrap();
            Reply::error(403, "InvalidAccessKeyId")
        }
    });
    assert_eq!(came.logins, ["OLD", "NEW", "NEW"]);
    assert!(!came.output.contains("FAILED"), "{}", came.output);
}

#[test]
fn the_role_of_a_machine_is_asked_for_with_a_token() {
    let service = Canned::start(
        |asked| match (asked.method.as_str(), asked.target.as_str()) {
            ("PUT", "/latest/api/token") => {
                assert_eq!(
                    asked.header("x-aws-ec2-metadata-token-ttl-seconds"),
                    Some("21600")
                );
                assert_eq!(asked.header("content-length"), Some("0"));
                Reply::new(200, "imds-token")
            }
            ("GET", path) if asked.header("x-aws-ec2-metadata-token") == Some("imds-token") => {
                match path.strip_prefix("/latest/meta-data/iam/security-credentials/") {
                    Some("") => Reply::new(200, "my-role"),
                    Some("my-role") => json("ROLEKEY", &in_seconds(6 * 3600)),
                    _ => Reply::new(404, ""),
                }
            }
            _ => Reply::new(401, ""),
        },
    );
    let url = service.url();
    let variables = [
        ("AWS_EC2_METADATA_DISABLED", "false"),
        ("AWS_EC2_METADATA_SERVICE_ENDPOINT", url.as_str()),
    ];
    let came = run(&variables, 3);
    assert_eq!(came.logins, ["ROLEKEY/t"; 3]);
    // Once for all requests.
    assert_eq!(service.asked().len(), 3);
}

#[test]
fn the_role_of_a_container_is_asked_for_with_its_authorization() {
    let service = Canned::start(|asked| match asked.header("authorization") {
        Some("Bearer abc") if asked.target == "/v1/credentials" => {
            json("PODKEY", &in_seconds(3600))
        }
        _ => Reply::error(401, "Unauthorized"),
    });
    let url = format!("{}/v1/credentials", service.url());
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "Bearer abc\n").unwrap();
    let token_file = file.path().to_str().unwrap();
    for token in [
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "Bearer abc"),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token_file),
    ] {
        let came = run(&[("AWS_CONTAINER_CREDENTIALS_FULL_URI", &url), token], 1);
        assert_eq!(came.logins, ["PODKEY/t"]);
    }
    let came = run(&[("AWS_CONTAINER_CREDENTIALS_FULL_URI", &url)], 1);
    assert!(
        came.output.contains("gave none: status 401"),
        "{}",
        came.output
    );
    let far = [("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://example.org/")];
    let came = run(&far, 1);
    assert!(
        came.output.contains("must be an https URL"),
        "{}",
        came.output
    );
}

#[test]
fn a_web_identity_is_exchanged() {
    let service = Canned::start(|asked| {
        let body = String::from_utf8(asked.body.clone()).unwrap();
        let expected = "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=arn%3Aaws%3A\
                        iam%3A%3A1%3Arole%2Fcache&RoleSessionName=samovar&WebIdentityToken=ey.x.y";
        if body != expected {
            return Reply::error(400, "InvalidIdentityToken");
        }
        let text = format!(
            "<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\
             \"><AssumeRoleWithWebIdentityResult><Credentials><SessionToken>sts</SessionToken>\
             <SecretAccessKey>s</SecretAccessKey><Expiration>{}</Expiration><AccessKeyId>WEBKEY\
             </AccessKeyId></Credentials></AssumeRoleWithWebIdentityResult>\
             </AssumeRoleWithWebIdentityResponse>",
            in_seconds(3600)
        );
        Reply::new(200, text)
    });
    let token = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(token.path(), "ey.x.y\n").unwrap();
    let url = service.url();
    let mut variables = vec![
        (
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            token.path().to_str().unwrap(),
        ),
        ("AWS_ENDPOINT_URL_STS", &url),
    ];
    let came = run(&variables, 1);
    assert!(
        came.output.contains("AWS_ROLE_ARN is not set"),
        "{}",
        came.output
    );
    variables.push(("AWS_ROLE_ARN", "arn:aws:iam::1:role/cache"));
    assert_eq!(run(&variables, 2).logins, ["WEBKEY/sts"; 2]);
    assert_eq!(service.asked().len(), 1);

    std::fs::write(token.path(), "other").unwrap();
    let came = run(&variables, 1);
    assert!(
        came.output.contains("(InvalidIdentityToken)"),
        "{}",
        came.output
    );
}

#[test]
fn credentials_are_renewed_before_they_expire() {
    let next = AtomicUsize::new(0);
    let service = Canned::start(move |_| match next.fetch_add(1, Ordering::Relaxed) {
        // Ends within the five minutes before which credentials are renewed.
        0 => json("FIRST", &in_seconds(200)),
        _ => json("SECOND", &in_seconds(3600)),
    });
    let url = format!("{}/x", service.url());
    let came = run(&[("AWS_CONTAINER_CREDENTIALS_FULL_URI", &url)], 3);
    assert_eq!(came.logins, ["FIRST/t", "SECOND/t", "SECOND/t"]);
}

#[test]
fn credentials_that_still_work_are_used_while_their_service_is_away() {
    let next = AtomicUsize::new(0);
    let service = Canned::start(move |_| match next.fetch_add(1, Ordering::Relaxed) {
        0 => json("FIRST", &in_seconds(200)),
        _ => Reply::new(500, ""),
    });
    let url = format!("{}/x", service.url());
    let came = run(&[("AWS_CONTAINER_CREDENTIALS_FULL_URI", &url)], 3);
    assert_eq!(came.logins, ["FIRST/t"; 3]);
    assert!(!came.output.contains("FAILED"), "{}", came.output);
}
