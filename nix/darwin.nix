# services.samovar for nix-darwin: `samovar serve` as a launchd daemon. Samovar is tested on Linux only,
# and package.nix builds it only there, so this module is a starting point for a port.
{
  config,
  lib,
  pkgs,
  ...
}:

let
  cfg = config.services.samovar;
  inherit (lib)
    mkEnableOption
    mkIf
    mkOption
    mkPackageOption
    ;
  format = pkgs.formats.toml { };
  file = format.generate "samovar.toml" cfg.settings;
in
{
  options.services.samovar = {
    enable = mkEnableOption "Samovar, which serves this machine's Nix store as a binary cache";

    package = mkPackageOption pkgs "samovar" { };

    settings = mkOption {
      inherit (format) type;
      default = { };
      description = "The configuration file, as in the reference.";
    };
  };

  config = mkIf cfg.enable {
    launchd.daemons.samovar.serviceConfig = {
      ProgramArguments = [
        "${cfg.package}/bin/samovar"
        "serve"
        "--config"
        "${file}"
      ];
      KeepAlive = true;
      RunAtLoad = true;
      StandardErrorPath = "/var/log/samovar.log";
      SoftResourceLimits.NumberOfFiles = 16384;
    };
  };
}
