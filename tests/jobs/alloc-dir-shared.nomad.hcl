# The tasks of a group share /alloc, and none sees another's secrets.
# prints: second | from first
# prints: second | no secrets of first

job "shared" {
  type = "batch"

  group "shared" {
    ephemeral_disk {
      size    = 250
      sticky  = true
      migrate = true
    }

    task "first" {
      driver = "exec"

      lifecycle {
        hook = "prestart"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "echo from first > /alloc/data/note; echo hidden > secrets/key"]
      }
    }

    task "second" {
      driver = "exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "cat /alloc/data/note; test -e secrets/key || echo no secrets of first"]
      }
    }
  }
}
