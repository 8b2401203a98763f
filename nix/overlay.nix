# pkgs.samovar has both programs, and can be used as `services.nix-serve.package`. pkgs.kettles is the
# example.
final: prev: {
  samovar = final.callPackage ./package.nix { };
  kettles = final.callPackage ./kettles-package.nix { };
}
