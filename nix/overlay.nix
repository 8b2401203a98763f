# pkgs.samovar: both programs. For `services.nix-serve.package` as it is. pkgs.kettles: the example.
final: prev: {
  samovar = final.callPackage ./package.nix { };
  kettles = final.callPackage ./kettles-package.nix { };
}
