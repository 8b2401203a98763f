# For Nix without flakes: packages, overlays and NixOS modules, as in flake.nix, which takes the latter two
# from here.
let
  overlays = {
    default = import ./nix/overlay.nix;
    nix-serve = import ./nix/nix-serve-overlay.nix;
  };
  # Only the packages need <nixpkgs>.
  pkgs = import <nixpkgs> { overlays = [ overlays.default ]; };
in
{
  inherit (pkgs) samovar kettles;
  inherit overlays;
  nixosModules = {
    default = {
      imports = [ ./nix/module.nix ];
      nixpkgs.overlays = [ overlays.default ];
    };
    nix-serve.nixpkgs.overlays = [ overlays.nix-serve ];
    kettles = {
      imports = [
        ./nix/kettles.nix
        ./nix/monitoring.nix
      ];
      nixpkgs.overlays = [ overlays.default ];
    };
    locust = ./nix/locust.nix;
  };
}
