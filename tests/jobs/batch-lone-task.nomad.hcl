# A task without a group is a group of its own.
# prints: alone in tiny

job "tiny" {
  type = "batch"

  task "tiny" {
    driver = "raw_exec"

    config {
      command = "/bin/sh"
      args    = ["-c", "echo alone in $NOMAD_GROUP_NAME"]
    }
  }
}
