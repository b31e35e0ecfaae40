# When the prestart task fails, the main task never starts.
# status: 4
# never: main ran

job "migrate" {
  type = "batch"

  group "app" {
    restart {
      attempts = 0
      mode     = "fail"
    }

    task "schema" {
      driver = "exec"

      lifecycle {
        hook = "prestart"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "exit 4"]
      }
    }

    task "main" {
      driver = "exec"

      config {
        command = "/bin/echo"
        args    = ["main ran"]
      }
    }
  }
}
