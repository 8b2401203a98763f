# The program that `services.nix-serve` starts, for each way to install it, evaluated with
# stand-in/lib.nix. A short module stands in for NixOS's: like that one, it starts the main program of
# its option `package`, whose default is pkgs.nix-serve.
let
  inherit (import ../stand-in/lib.nix) lib system;

  without-flakes = import ../../default.nix;
  flake = (import ../../flake.nix).outputs {
    self = flake;
    nixpkgs = { inherit lib; };
  };

  nixos =
    { config, pkgs, ... }:
    let
      cfg = config.services.nix-serve;
    in
    {
      options.services.nix-serve = {
        enable = lib.mkEnableOption "nix-serve";
        package = lib.mkPackageOption pkgs "nix-serve" { };
      };
      config = lib.mkIf cfg.enable {
        systemd.services.nix-serve.script = "exec ${lib.getExe cfg.package} --listen 0.0.0.0:5000";
      };
    };
  script = modules: (system ([ nixos ] ++ modules)).systemd.services.nix-serve.script;
  enabled = {
    services.nix-serve.enable = true;
  };
in
{
  # NixOS alone.
  nixos = script [ enabled ];
  package = script [
    flake.nixosModules.default
    (
      { pkgs, ... }:
      {
        services.nix-serve = {
          enable = true;
          package = pkgs.samovar;
        };
      }
    )
  ];
  module = script [
    flake.nixosModules.nix-serve
    enabled
  ];
  module-without-flakes = script [
    without-flakes.nixosModules.nix-serve
    enabled
  ];
  # Together with services.samovar, whose module has the other overlay.
  both-modules = script [
    flake.nixosModules.nix-serve
    flake.nixosModules.default
    enabled
  ];
  samovar =
    (system [
      without-flakes.nixosModules.default
      { services.samovar.enable = true; }
    ]).systemd.services.samovar.serviceConfig.ExecStart;
}
