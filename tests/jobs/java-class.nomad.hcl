# A Java program runs with the machine's JVM.
# before: mkdir $DIR/java && printf 'public class Hello { public static void main(String[] a) { System.out.println("Hello " + a[0] + " from Java, " + Runtime.getRuntime().maxMemory() / 1048576 + " MiB"); } }' > $DIR/java/Hello.java && javac -d $DIR/java $DIR/java/Hello.java && chmod -R a+rX $DIR/java
# args: --var dir=$DIR/java
# prints: Hello Nomad from Java

variable "dir" {
  type = string
}

job "hello" {
  type = "batch"

  group "hello" {
    task "hello" {
      driver = "java"

      artifact {
        source      = "${var.dir}/Hello.class"
        destination = "local/classes/Hello.class"
        mode        = "file"
      }

      config {
        class       = "Hello"
        class_path  = "/local/classes"
        jvm_options = ["-Xmx64m", "-XX:+UseSerialGC"]
        args        = ["Nomad"]
      }

      resources {
        cpu    = 500
        memory = 256
      }
    }
  }
}
