# Limits of a task: files, processes, no new privileges.
# prints: 77 files, NoNewPrivs 1

job "limits" {
  type = "batch"

  group "limits" {
    task "limits" {
      driver = "exec"

      config {
        command    = "/bin/sh"
        args       = ["-c", "echo $(ulimit -n) files, NoNewPrivs $(awk '/NoNewPrivs/ {print $2}' /proc/self/status)"]
        pids_limit = 20

        ulimit {
          nofile = "77"
        }
      }

      resources {
        cpu        = 200
        memory     = 64
        memory_max = 128
      }
    }
  }
}
