# What module.nix makes of some option values. `nixpkgs` is a checkout of nixpkgs, whose library and
# types are used; without it, those of the stand-in. A test compares the results.
{
  nixpkgs ? null,
}:

let
  standIn = import ../stand-in/lib.nix;
  lib = import (nixpkgs + "/lib");
  real = import (nixpkgs + "/pkgs/pkgs-lib/formats.nix") {
    inherit lib;
    pkgs = { };
  };
  pkgs = standIn.pkgs // {
    # An attribute set with a path, as `types.package` requires.
    samovar = {
      type = "derivation";
      outPath = standIn.pkgs.samovar;
    };
    formats.toml = options: {
      inherit (real.toml options) type;
      inherit (standIn.pkgs.formats.toml options) generate;
    };
  };
  # Options of NixOS, with any values.
  others = lib.genAttrs [ "assertions" "environment" "networking" "nix" "systemd" ] (
    _: lib.mkOption { type = lib.types.anything; }
  );
  evaluateWithNixpkgs =
    given:
    (lib.evalModules {
      modules = [
        ../module.nix
        {
          options = others // {
            services.nginx = lib.mkOption {
              type = lib.types.anything;
              default = { };
            };
          };
          config = {
            services.samovar = given;
            _module.args = { inherit pkgs; };
          };
        }
      ];
    }).config;
  evaluate =
    if nixpkgs != null then
      evaluateWithNixpkgs
    else
      given:
      standIn.system [
        ../module.nix
        { config.services.samovar = given; }
      ];

  facts =
    given:
    let
      made = evaluate given;
      service = made.systemd.services.samovar;
      socket = made.systemd.sockets.samovar;
    in
    {
      inherit (made.services.samovar) settings;
      refused = map (it: it.message) (builtins.filter (it: !it.assertion) made.assertions);
      listen = socket.listenStreams;
      credentials = service.serviceConfig.LoadCredential;
      program = builtins.head (builtins.split " " service.serviceConfig.ExecStart);
      ports = made.networking.firewall.allowedTCPPorts or [ ];
      nginx = made.services.nginx or { };
      nix = made.nix.settings;
      etc = builtins.attrNames made.environment.etc;
    };
  attempt =
    given:
    let
      made = facts given;
      tried = builtins.tryEval (builtins.deepSeq made made);
    in
    if tried.success then tried.value else "refused by the type of an option";
in
builtins.mapAttrs (_: given: attempt ({ enable = true; } // given)) {
  defaults = { };
  keys-and-settings = {
    openFirewall = true;
    port = 5007;
    secretKeyFiles = [
      "/var/keys/one.secret"
      "/var/keys/two.secret"
    ];
    settings = {
      priority = 20;
      connections.idle-time = "10 s";
    };
  };
  # Values of the module and of the operator in the same tables.
  files = {
    tls = {
      certificateFile = "/var/keys/cache.pem";
      keyFile = "/var/keys/cache.key";
    };
    usersFile = "/var/keys/users";
    tokensFile = "/var/keys/tokens";
    credentials.authorities = "/var/keys/authorities.pem";
    settings = {
      tls.client-authorities = "credential:authorities";
      access.realm = "cache";
    };
  };
  sockets = {
    address = "192.0.2.1";
    extraSockets = [ "/run/samovar/socket" ];
  };
  behind-nginx = {
    nginx.hostName = "cache.example.org";
    uploads.enable = true;
    uploads.quota = "600 GiB";
  };
  other-proxies = {
    nginx.hostName = "cache.example.org";
    settings.access.trusted-proxies = [ "192.0.2.9" ];
  };
  listen-in-settings.settings.listen = [ "127.0.0.1:5000" ];
  certificate-without-key.tls.certificateFile = "/var/keys/cache.pem";
  tls-behind-nginx = {
    nginx.hostName = "cache.example.org";
    tls = {
      certificateFile = "/var/keys/cache.pem";
      keyFile = "/var/keys/cache.key";
    };
  };
  port-out-of-range.port = 99999;
  unknown-option.prot = 5000;
  key-twice = {
    tls.keyFile = "/var/keys/cache.key";
    settings.tls.key = "/var/keys/other.key";
  };
}
