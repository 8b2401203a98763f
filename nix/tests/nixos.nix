# Whole NixOS systems with the modules of this directory, evaluated with nixos/lib/eval-config.nix and all
# modules of `nixpkgs`, a checkout of nixpkgs or the part of one that stand-in/packages.nix describes.
#
#   nix-instantiate --eval --strict --json -E \
#     '(import nix/tests/nixos.nix { nixpkgs = /nixpkgs; }).systems'
{
  nixpkgs,
  pkgs ? import ../stand-in/packages.nix { inherit nixpkgs; },
}:

let
  inherit (pkgs) lib;
  toml = (import ../stand-in/lib.nix).pkgs.formats.toml { };

  flake = (import ../../flake.nix).outputs {
    self = flake;
    nixpkgs = {
      inherit lib;
      legacyPackages = lib.genAttrs lib.systems.flakeExposed (_: pkgs);
    };
  };

  # The least that NixOS asks for, and our modules, none of them enabled, except the one that replaces a
  # package.
  base = {
    imports = lib.attrValues (removeAttrs flake.nixosModules [ "nix-serve" ]);
    nixpkgs.hostPlatform = "x86_64-linux";
    boot.loader.grub.enable = false;
    fileSystems."/" = {
      device = "/dev/vda";
      fsType = "ext4";
    };
    system.stateVersion = lib.trivial.release;
    # The manual needs more files than a part of nixpkgs has.
    documentation.nixos.enable = false;
    services.nginx = {
      # Puts the configuration into /etc/nginx/nginx.conf.
      enableReload = true;
      # This check is a part of the build.
      validateConfigFile = false;
    };
  };
  evaluate =
    given:
    import (nixpkgs + "/nixos/lib/eval-config.nix") {
      inherit pkgs;
      system = null;
      modules = [
        base
        given
      ];
    };

  # Evaluates all that `nixos-rebuild` builds. Like there, a failed assertion is an error.
  build = given: (evaluate given).config.system.build.toplevel.drvPath;

  facts =
    given:
    let
      made = (evaluate given).config;
      etc = made.environment.etc;
      ours = [
        "kettles"
        "locust"
        "nix-serve"
        "samovar"
      ];
      only = lib.filterAttrs (name: _: lib.elem (lib.head (lib.splitString "." name)) ours);
    in
    {
      toplevel = build given;
      inherit (made) warnings;
      units = lib.mapAttrs (_: it: it.text) (only made.systemd.units);
      scripts = lib.mapAttrs (_: it: it.script) (only made.systemd.services);
      users = lib.attrNames (only (made.users.users // made.users.groups));
      ports = made.networking.firewall.allowedTCPPorts;
      allowed-users = made.nix.settings.extra-allowed-users or [ ];
      # NixOS passes the values as JSON to a program that writes TOML. This writes the same values.
      settings = lib.mapNullable (it: toml.generate "samovar.toml" (builtins.fromJSON it.source.value)) (
        etc."samovar/samovar.toml" or null
      );
      nginx = lib.mapNullable (it: it.source.text) (etc."nginx/nginx.conf" or null);
    };
in
{
  inherit build;

  packages = lib.mapAttrs (_: it: { inherit (it) pname meta; }) flake.packages.x86_64-linux;

  # What the manual says about our options.
  options = lib.listToAttrs (
    map (it: lib.nameValuePair it.name (it.default.text or null)) (
      lib.optionAttrSetToDocList {
        inherit ((evaluate { }).options.services) samovar kettles locust;
      }
    )
  );

  systems = lib.mapAttrs (_: facts) {
    disabled = { };
    # NixOS's own module, with our package.
    nix-serve =
      { pkgs, ... }:
      {
        services.nix-serve = {
          enable = true;
          package = pkgs.samovar;
          bindAddress = "127.0.0.1";
          port = 5001;
          openFirewall = true;
          secretKeyFile = "/var/keys/cache.secret";
          extraParams = "--priority 30";
        };
      };
    # NixOS's own module, whose package is replaced.
    nix-serve-replaced = {
      imports = [ flake.nixosModules.nix-serve ];
      services.nix-serve.enable = true;
    };
    defaults.services.samovar.enable = true;
    all-options.services.samovar = {
      enable = true;
      address = "192.0.2.1";
      port = 5007;
      openFirewall = true;
      extraSockets = [ "/run/samovar/socket" ];
      secretKeyFiles = [
        "/var/keys/one.secret"
        "/var/keys/two.secret"
      ];
      credentials.team-a-users = "/var/keys/team-a.users";
      tls = {
        certificateFile = "/var/keys/cache.pem";
        keyFile = "/var/keys/cache.key";
      };
      usersFile = "/var/keys/users";
      tokensFile = "/var/keys/tokens";
      uploads = {
        enable = true;
        retention = "90d";
        retentionRules = [ "*-debug=30d" ];
        retentionSize = "500 GiB";
        quota = "600 GiB";
      };
      settings = {
        priority = 33;
        connections.idle-time = "60 s";
        caches.team-a.access.users-file = "credential:team-a-users";
      };
    };
    # The same port of another address.
    beside-nix-serve.services = {
      nix-serve = {
        enable = true;
        bindAddress = "127.0.0.1";
      };
      samovar = {
        enable = true;
        address = "192.0.2.1";
      };
    };
    # With the settings of NixOS that change what nginx passes on.
    behind-nginx.services = {
      samovar = {
        enable = true;
        uploads.enable = true;
        nginx.hostName = "cache.example.org";
      };
      nginx = {
        recommendedProxySettings = true;
        recommendedGzipSettings = true;
        recommendedOptimisation = true;
        recommendedTlsSettings = true;
        virtualHosts."cache.example.org" = {
          forceSSL = true;
          sslCertificate = "/var/keys/cache.pem";
          sslCertificateKey = "/var/keys/cache.key";
        };
      };
    };
    inherit (import ../network.nix) app locust;
  };
}
