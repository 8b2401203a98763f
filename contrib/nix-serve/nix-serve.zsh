#compdef nix-serve
# Completes the options that `nix-serve --help` lists; this function is part of zsh.
_gnu_generic
