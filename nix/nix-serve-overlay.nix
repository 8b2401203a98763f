# pkgs.nix-serve is Samovar, so that NixOS's own `services.nix-serve` starts it.
final: prev: import ./overlay.nix final prev // { nix-serve = final.samovar; }
