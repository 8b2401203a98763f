# Nothing of this was built: there is no complete nixpkgs where this is tested. nix/README.md describes
# what was evaluated.
{
  description = "Samovar, a Nix binary cache server";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs =
    { self, nixpkgs }:
    let
      systems = [
        "x86_64-linux"
        "aarch64-linux"
      ];
      forAllSystems = nixpkgs.lib.genAttrs systems;
    in
    {
      packages = forAllSystems (
        system:
        let
          samovar = nixpkgs.legacyPackages.${system}.callPackage ./nix/package.nix { };
        in
        {
          inherit samovar;
          kettles = nixpkgs.legacyPackages.${system}.callPackage ./nix/kettles-package.nix {
            inherit samovar;
          };
          default = samovar;
        }
      );
      inherit (import ./default.nix) overlays nixosModules;
      checks = forAllSystems (system: {
        kettles = import ./nix/tests/kettles.nix {
          pkgs = nixpkgs.legacyPackages.${system};
          overlay = self.overlays.default;
        };
      });
    };
}
