# What a task writes to a host volume stays.
# before: mkdir $DIR/orders; chmod 777 $DIR/orders
# args: --volume orders=$DIR/orders
# after: test "$(cat $DIR/orders/42)" = "two boxes"

job "orders" {
  type = "batch"

  group "orders" {
    volume "data" {
      type   = "host"
      source = "orders"
    }

    task "write" {
      driver = "exec"

      volume_mount {
        volume      = "data"
        destination = "/srv/orders"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "echo two boxes > /srv/orders/42"]
      }
    }
  }
}
