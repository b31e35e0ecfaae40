# A task runs as the user that it names.
# prints: daemon in /srv

job "user" {
  type = "batch"

  group "user" {
    task "user" {
      driver = "exec"
      user   = "daemon"

      config {
        command  = "/bin/sh"
        args     = ["-c", "echo $(id -un) in $(pwd)"]
        work_dir = "/srv"
      }
    }
  }
}
