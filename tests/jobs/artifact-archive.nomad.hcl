# An archive from a web server is unpacked.
# before: mkdir -p $DIR/www/site && echo packed > $DIR/www/site/page && tar -C $DIR/www -czf $DIR/www/site.tar.gz site && { busybox httpd -f -p 198.51.100.7:18092 -h $DIR/www & echo $! > $DIR/pid; }
# after: kill $(cat $DIR/pid)
# prints: packed

job "site" {
  type = "batch"

  group "site" {
    task "site" {
      driver = "exec"

      artifact {
        source      = "http://198.51.100.7:18092/site.tar.gz"
        destination = "local/unpacked"
      }

      config {
        command = "/bin/cat"
        args    = ["local/unpacked/site/page"]
      }
    }
  }
}
