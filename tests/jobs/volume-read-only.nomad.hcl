# A task reads a read-only volume and cannot write to it.
# before: mkdir $DIR/site; echo page > $DIR/site/index.html; chmod -R a+rwX $DIR/site
# args: --volume site=$DIR/site:ro
# prints: page
# prints: Read-only file system
# after: ! test -e $DIR/site/new

job "site" {
  type = "batch"

  group "site" {
    volume "site" {
      type      = "host"
      source    = "site"
      read_only = true
    }

    task "read" {
      driver = "exec"

      volume_mount {
        volume      = "site"
        destination = "/www"
        read_only   = true
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "cat /www/index.html; touch /www/new; true"]
      }
    }
  }
}
