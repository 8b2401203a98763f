//! Environment variables.

use samovar_server::config::Settings;

#[test]
fn invalid_variables_are_refused() {
    let refused = |name: &str, value: &str, message: &str| {
        let variables = [(name.to_owned(), value.to_owned())];
        let error = Settings::default()
            .add_variables(variables, &[])
            .unwrap_err();
        assert_eq!(error.to_string(), message);
    };
    refused(
        "SAMOVAR_PRIORTY",
        "1",
        "$SAMOVAR_PRIORTY: unknown option `SAMOVAR_PRIORTY`; did you mean `SAMOVAR_PRIORITY`?",
    );
    refused(
        "SAMOVAR_SSL_CERT",
        "/c",
        "$SAMOVAR_SSL_CERT: unknown option `SAMOVAR_SSL_CERT`; did you mean \
         `SAMOVAR_TLS_CERTIFICATE`?",
    );
    refused(
        "SAMOVAR_PRIORITY",
        "high",
        "$SAMOVAR_PRIORITY: priority must be a whole number from 0 to 2147483647, got \"high\"",
    );
}
