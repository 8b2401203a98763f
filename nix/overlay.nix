# pkgs.samovar: both programs. For `services.nix-serve.package` as it is.
final: prev: {
  samovar = final.callPackage ./package.nix { };
}
