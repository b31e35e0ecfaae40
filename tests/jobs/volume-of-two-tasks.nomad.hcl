# Two tasks share a volume at different places.
# before: mkdir $DIR/spool; chmod 777 $DIR/spool
# args: --volume spool=$DIR/spool
# prints: reader | message 1

job "spool" {
  type = "batch"

  group "spool" {
    volume "spool" {
      type   = "host"
      source = "spool"
    }

    task "writer" {
      driver = "exec"

      lifecycle {
        hook = "prestart"
      }

      volume_mount {
        volume      = "spool"
        destination = "/out"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "echo message 1 > /out/1"]
      }
    }

    task "reader" {
      driver = "exec"

      volume_mount {
        volume      = "spool"
        destination = "/in"
        read_only   = true
      }

      config {
        command = "/bin/cat"
        args    = ["/in/1"]
      }
    }
  }
}
