# A sysbatch job runs on this machine as it would on each.
# prints: cleaned

job "clean" {
  type = "sysbatch"

  group "clean" {
    task "clean" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "rm -f /tmp/no-such-file-of-anybody && echo cleaned"]
      }
    }
  }
}
