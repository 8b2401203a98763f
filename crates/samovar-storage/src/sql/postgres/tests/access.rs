//! Who may connect: passwords and certificates.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use super::*;

const LISTEN: &str = "listen_addresses=127.0.0.1";

fn open(url: &str) -> Result<Database, StorageError> {
    Database::open_postgres(&PostgresSettings::parse(url).unwrap(), None)
}

#[track_caller]
fn check_refused(url: &str, expected: &str) {
    let started = Instant::now();
    let message = open(url).map(drop).unwrap_err().to_string();
    assert!(message.contains(expected), "{url}: {message}");
    assert!(!message.contains("secret"), "{message}");
    // A wrong setting stays wrong, so nothing is repeated.
    assert!(started.elapsed() < OPEN_TIME, "{url}");
}

#[test]
fn a_wrong_password_is_refused() {
    if !Server::is_installed() {
        return;
    }
    let server = Server::with_settings(&[LISTEN, "fsync=off"]);
    let mut client = server.client();
    let role = "create role cache login superuser password 'right secret'";
    client.batch_execute(role).unwrap();
    server.write_file(
        "pg_hba.conf",
        "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n",
    );
    client.batch_execute("select pg_reload_conf()").unwrap();
    let url = |login: &str| format!("postgresql://{login}@127.0.0.1:{}/postgres", server.port());
    testkit::eventually("the rules are read", || open(&url("cache")).is_err());
    check_refused(&url("cache"), "password missing");
    check_refused(
        &url("cache:wrong%20secret"),
        "password authentication failed",
    );
    open(&url("cache:right%20secret")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    std::fs::write(&file, "right secret\n").unwrap();
    let mut settings = PostgresSettings::parse(&url("cache")).unwrap();
    settings.read_password(&file).unwrap();
    Database::open_postgres(&settings, None).unwrap();
}

/// An authority that issues certificates.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, "authority");
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    /// Returns a certificate and its key.
    fn issue(&self, host: Option<&str>, name: &str) -> (String, String) {
        let hosts: Vec<String> = host.into_iter().map(str::to_owned).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}

#[test]
fn certificates_are_verified_as_by_libpq() {
    if !Server::is_installed() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.display().to_string()
    };
    let (authority, other) = (Authority::new(), Authority::new());
    let (root, other_root) = (
        file("root", &authority.0.pem()),
        file("other", &other.0.pem()),
    );
    let server = Server::with_settings(&[LISTEN, "fsync=off"]);
    let (certificate, key) = authority.issue(Some("localhost"), "server");
    server.write_file("server.crt", &certificate);
    server.write_file("server.key", &key);
    server.write_file("root.crt", authority.0.pem());
    let mut client = server.client();
    client.batch_execute("alter system set ssl to on").unwrap();
    client
        .batch_execute("alter system set ssl_ca_file to 'root.crt'")
        .unwrap();
    client.batch_execute("select pg_reload_conf()").unwrap();
    let url = |host: &str, parameters: &str| {
        let port = server.port();
        format!("postgresql://postgres@{host}:{port}/postgres?{parameters}")
    };
    let is_encrypted = |url: &str| -> bool {
        let query = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";
        let read = |connection: &Connection<'_>| connection.row(query, &[], |row| row.get(0));
        open(url).unwrap().read(read).unwrap()
    };
    testkit::eventually("the server has its certificate", || {
        open(&url("localhost", "sslmode=require")).is_ok()
    });
    assert!(is_encrypted(&url("127.0.0.1", "sslmode=prefer")));
    assert!(!is_encrypted(&url("127.0.0.1", "sslmode=disable")));
    let full = format!("sslmode=verify-full&sslrootcert={root}");
    assert!(is_encrypted(&url("localhost", &full)));
    check_refused(&url("127.0.0.1", &full), "not valid for name");
    let authority_only = format!("sslmode=verify-ca&sslrootcert={root}");
    assert!(is_encrypted(&url("127.0.0.1", &authority_only)));
    for mode in ["require", "verify-ca", "verify-full"] {
        let parameters = format!("sslmode={mode}&sslrootcert={other_root}");
        check_refused(&url("localhost", &parameters), "invalid peer certificate");
    }
    check_refused(
        &url("localhost", "sslmode=verify-full&sslrootcert=/none"),
        "/none",
    );
    // A certificate of the client.
    server.write_file(
        "pg_hba.conf",
        "local all all trust\nhostssl all all 127.0.0.1/32 cert\n",
    );
    client.batch_execute("select pg_reload_conf()").unwrap();
    testkit::eventually("the rules are read", || {
        open(&url("localhost", &full)).is_err()
    });
    let (certificate, key) = authority.issue(None, "postgres");
    let (certificate, key) = (file("certificate", &certificate), file("key", &key));
    let with = format!("{full}&sslcert={certificate}&sslkey={key}");
    assert!(is_encrypted(&url("localhost", &with)));
    check_refused(&url("localhost", "sslmode=disable"), "pg_hba.conf");
}
