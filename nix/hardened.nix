# Sandboxing settings for units of servers that need no privileges. contrib/systemd has the same settings,
# with reasons.
{
  DynamicUser = true;
  LimitCORE = 0;
  CapabilityBoundingSet = "";
  AmbientCapabilities = "";
  NoNewPrivileges = true;
  UMask = "0077";
  ProtectSystem = "strict";
  ProtectHome = true;
  PrivateTmp = true;
  PrivateDevices = true;
  PrivateUsers = true;
  PrivateMounts = true;
  ProtectClock = true;
  ProtectControlGroups = true;
  ProtectHostname = true;
  ProtectKernelLogs = true;
  ProtectKernelModules = true;
  ProtectKernelTunables = true;
  ProtectProc = "invisible";
  ProcSubset = "pid";
  RemoveIPC = true;
  RestrictAddressFamilies = [
    "AF_UNIX"
    "AF_INET"
    "AF_INET6"
  ];
  RestrictNamespaces = true;
  RestrictRealtime = true;
  RestrictSUIDSGID = true;
  LockPersonality = true;
  MemoryDenyWriteExecute = true;
  KeyringMode = "private";
  SystemCallArchitectures = "native";
  SystemCallFilter = [
    "@system-service"
    "~@privileged @resources"
    "prlimit64 setrlimit setpriority"
  ];
  SystemCallErrorNumber = "EPERM";
}
