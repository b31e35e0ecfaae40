# A container writes to a host volume.
# before: mkdir $DIR/data
# args: --volume data=$DIR/data
# after: test "$(cat $DIR/data/x)" = kept

job "data" {
  type = "batch"

  group "data" {
    volume "data" {
      type   = "host"
      source = "data"
    }

    task "data" {
      driver = "docker"

      volume_mount {
        volume      = "data"
        destination = "/srv/data"
      }

      config {
        image   = "busybox:1"
        command = "/bin/sh"
        args    = ["-c", "echo kept > /srv/data/x"]
      }
    }
  }
}
