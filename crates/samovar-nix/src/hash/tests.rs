use super::*;

const EMPTY_BASE16: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
const EMPTY_BASE32: &str = "0mdqa9w1p6cmli6976v4wi0sw9r4p5prkj7lzfd1877wk11c9c73";
const EMPTY_BASE64: &str = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=";

#[track_caller]
fn check(text: &str, algorithm: Algorithm, base16: &str) {
    let hash = Hash::parse(text).unwrap();
    assert_eq!(
        (hash.algorithm(), hash.base16().as_str()),
        (algorithm, base16)
    );
    assert_eq!(hash.digest().len(), algorithm.digest_len());
    assert_eq!(Hash::new(algorithm, hash.digest()), Ok(hash));
    for form in [hash.base16(), hash.nixbase32(), hash.base64()] {
        assert_eq!(
            Hash::parse(&format!("{}:{form}", algorithm.name())),
            Ok(hash)
        );
        assert_eq!(Hash::parse_digest(algorithm, &form), Ok(hash));
    }
    assert_eq!(Hash::parse(&hash.sri()), Ok(hash));
    assert_eq!(Hash::parse(&hash.to_string()), Ok(hash));
}

#[track_caller]
fn check_refused(text: &str, error: HashError) {
    assert_eq!(Hash::parse(text), Err(error));
}

#[test]
fn four_forms_of_sha256() {
    check(
        &format!("sha256:{EMPTY_BASE16}"),
        Algorithm::Sha256,
        EMPTY_BASE16,
    );
    check(
        &format!("sha256:{EMPTY_BASE32}"),
        Algorithm::Sha256,
        EMPTY_BASE16,
    );
    check(
        &format!("sha256:{EMPTY_BASE64}"),
        Algorithm::Sha256,
        EMPTY_BASE16,
    );
    check(
        &format!("sha256-{EMPTY_BASE64}"),
        Algorithm::Sha256,
        EMPTY_BASE16,
    );
    check(
        &format!("sha256:{}", EMPTY_BASE16.to_uppercase()),
        Algorithm::Sha256,
        EMPTY_BASE16,
    );
    check(
        &format!("blake3:{EMPTY_BASE32}"),
        Algorithm::Blake3,
        EMPTY_BASE16,
    );
}

// The digests of the empty string, each written by `nix-hash --flat --base32`.
#[test]
fn other_algorithms() {
    check(
        "md5:3y8bwfr609h3lh9ch0izcqq7fl",
        Algorithm::Md5,
        "d41d8cd98f00b204e9800998ecf8427e",
    );
    check(
        "sha1:143xibwh31h9bvxzalr0sjvbbvpa6ffs",
        Algorithm::Sha1,
        "da39a3ee5e6b4b0d3255bfef95601890afd80709",
    );
    check(
        "sha512-z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcg/SpIdNs6c5H0NE8XYXysP+DGNKHfuwvY7kxvUdBeoGlODJ6+SfaPg==",
        Algorithm::Sha512,
        "cf83e1357eefb8bdf1542850d66d8007d620e4050b5715dc83f4a921d36ce9ce\
         47d0d13c5d85f2b0ff8318d2877eec2f63b931bd47417a81a538327af927da3e",
    );
}

#[test]
fn sri_needs_no_padding_and_the_prefixed_form_does() {
    let unpadded = EMPTY_BASE64.trim_end_matches('=');
    check(
        &format!("sha256-{unpadded}"),
        Algorithm::Sha256,
        EMPTY_BASE16,
    );
    check_refused(&format!("sha256:{unpadded}"), HashError::Length);
}

#[test]
fn refusals() {
    check_refused("", HashError::NoAlgorithm);
    check_refused(EMPTY_BASE16, HashError::NoAlgorithm);
    check_refused(":", HashError::Algorithm);
    check_refused("SHA256:", HashError::Algorithm);
    check_refused("sha384-AAAA", HashError::Algorithm);
    check_refused("sha256:", HashError::Length);
    check_refused(&format!("sha256:{EMPTY_BASE16}0"), HashError::Length);
    check_refused(&format!("sha1:{EMPTY_BASE16}"), HashError::Length);
    check_refused(
        &format!("sha256:g{}", &EMPTY_BASE16[1..]),
        HashError::Base16,
    );
    check_refused(
        &format!("sha256:{}", EMPTY_BASE32.to_uppercase()),
        HashError::Base32(nixbase32::DecodeError::Digit),
    );
    check_refused(
        &format!("sha256:z{}", &EMPTY_BASE32[1..]),
        HashError::Base32(nixbase32::DecodeError::Overflow),
    );
    check_refused(
        &format!("sha256:-{}", &EMPTY_BASE64[1..]),
        HashError::Base64(base64::Base64Error::Character),
    );
    // The SRI form allows only base-64.
    check_refused(
        &format!("sha256-{EMPTY_BASE16}"),
        HashError::Base64(base64::Base64Error::Length),
    );
    check_refused("sha256-", HashError::Base64(base64::Base64Error::Length));
    // A colon decides the form, even after a dash.
    check_refused(&format!("sha256-x:{EMPTY_BASE16}"), HashError::Algorithm);
    // A character of several bytes is refused, not split.
    check_refused(
        &format!("sha256:é{}", &EMPTY_BASE16[2..]),
        HashError::Base16,
    );
}

#[test]
fn a_digest_of_another_length_is_no_hash() {
    assert_eq!(
        Hash::new(Algorithm::Sha256, &[0; 31]),
        Err(HashError::Length)
    );
    assert_eq!(
        Hash::new(Algorithm::Sha256, &[0; 33]),
        Err(HashError::Length)
    );
    assert_eq!(
        Hash::sha256(&[7; 32]),
        Hash::new(Algorithm::Sha256, &[7; 32]).unwrap()
    );
}
