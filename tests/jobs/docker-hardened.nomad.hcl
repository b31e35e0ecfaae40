# A container without capabilities, with a read-only root, as another user.
# prints: uid 65534, no capabilities
# prints: Read-only file system

job "hard" {
  type = "batch"

  group "hard" {
    task "hard" {
      driver = "docker"
      user   = "65534"

      config {
        image           = "busybox:1"
        entrypoint      = ["/bin/sh", "-c"]
        args            = ["grep -q '^CapEff:.0*$' /proc/self/status && echo uid $(id -u), no capabilities; touch /x; true"]
        cap_drop        = ["all"]
        readonly_rootfs = true
        pids_limit      = 50

        ulimit {
          nofile = "1024:2048"
        }
      }
    }
  }
}
