# A template's file has the mode that it asks for, and its own delimiters.
# prints: 600 {{ not ours }} web

job "perms" {
  type = "batch"

  group "perms" {
    task "web" {
      driver = "exec"

      template {
        destination     = "secrets/key"
        perms           = "600"
        left_delimiter  = "[["
        right_delimiter = "]]"
        data            = "{{ not ours }} [[ env \"NOMAD_TASK_NAME\" ]]"
        uid             = 65534
        gid             = 65534
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "echo $(stat -c %a secrets/key) $(cat secrets/key)"]
      }
    }
  }
}
