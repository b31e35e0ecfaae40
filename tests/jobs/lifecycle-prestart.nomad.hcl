# A prestart task prepares what the main task needs.
# prints: main | schema 7

job "migrate" {
  type = "batch"

  group "app" {
    task "schema" {
      driver = "exec"

      lifecycle {
        hook    = "prestart"
        sidecar = false
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "echo schema 7 > $NOMAD_ALLOC_DIR/data/version"]
      }
    }

    task "main" {
      driver = "exec"

      config {
        command = "/bin/cat"
        args    = ["${NOMAD_ALLOC_DIR}/data/version"]
      }
    }
  }
}
