# Poststart and poststop tasks run around the main task.
# prints: warm | warmed up
# prints: main | serving
# prints: report | reported

job "hooks" {
  type = "batch"

  group "app" {
    task "main" {
      driver = "exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "echo serving; until test -e $NOMAD_ALLOC_DIR/warm; do sleep 0.1; done"]
      }
    }

    task "warm" {
      driver = "exec"

      lifecycle {
        hook = "poststart"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "touch $NOMAD_ALLOC_DIR/warm; echo warmed up"]
      }
    }

    task "report" {
      driver = "exec"

      lifecycle {
        hook = "poststop"
      }

      config {
        command = "/bin/echo"
        args    = ["reported"]
      }
    }
  }
}
