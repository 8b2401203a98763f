# Completes the options that `nix-serve --help` lists; this function is part of bash-completion.
complete -F _longopt nix-serve
